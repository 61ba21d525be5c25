"""What people look at: command line, report, pages."""
