"""Layer tables traced from a module on the meta device."""
