//! What do the bytes mean? RoCE headers, opcodes and the ICRC.
