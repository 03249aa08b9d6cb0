"""HTML pages and plots of monitoring."""
