"""The command line; sub-commands are loaded only when they are called."""
