"""The dashboard: pages rendered here from what others read and decide. One module per group of pages."""
