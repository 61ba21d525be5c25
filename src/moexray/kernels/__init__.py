"""Numba twins of the hot algorithms: same names, same arguments, arrays in, arrays out."""
