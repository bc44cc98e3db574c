//! What administrators do in several steps over the resource API: teams ([`team`]), and emptying nodes ([`drain`]). The
//! command line and the web UI call it with the client of the person that asks, so the API decides on that person's
//! rights. `team::objects` and `drain::plan` are pure: objects in, decisions out; so are [`cancellation`], which says how
//! jobs are suspended and cancelled, and [`idle_jobs`], about jobs whose GPUs do nothing.

pub mod cancellation;
pub mod drain;
pub mod idle_jobs;
pub mod team;
