"""One Triton process."""
