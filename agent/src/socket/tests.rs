//! What is taken and refused, what is told, and whether the description says the same.

mod described;
mod refused;
mod socket_file;
mod told;
