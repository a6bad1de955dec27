//! How do packets move? UDP sockets with segmentation offload.
