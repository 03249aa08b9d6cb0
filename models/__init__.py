"""The ranking models behind one interface."""
