//! Who owns the port when users share it? ferroced, the broker.
