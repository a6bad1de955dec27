//! How does C see it? The repr(C) types of libibverbs, librdmacm and libibumad.
