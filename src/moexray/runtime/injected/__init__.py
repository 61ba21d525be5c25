"""A folder for PYTHONPATH: Python imports its sitecustomize at start; see runtime/inject.py."""
