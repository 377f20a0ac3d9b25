//! What is begun, answered and taken note of, turn by turn.

mod answers;
mod costs;
mod roles;
mod scene;
