"""`python -m moexray`."""

from moexray.faces.cli.main import run

if __name__ == "__main__":
    run()
