"""Starting and finding Triton."""
