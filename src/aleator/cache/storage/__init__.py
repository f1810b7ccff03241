"""Where keys and values are kept, one file per way of keeping them."""
