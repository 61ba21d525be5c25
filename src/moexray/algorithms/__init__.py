"""Plain numpy statements of each method: the reference of its kernel, shared by whatif and runtime."""
