"""Did it help: A/B measurement and the fault lab."""
