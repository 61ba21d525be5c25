"""An X-ray for Mixture-of-Experts inference: what broke, with evidence, and what to change."""

__version__ = "0.1.0"
__all__ = ["__version__"]
