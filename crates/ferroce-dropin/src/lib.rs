//! What do the libraries export? The cdylib behind three names.
