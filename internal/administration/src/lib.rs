//! What administrators do in several steps over the resource API: teams ([`team`]), and emptying nodes ([`drain`]). The
//! command line and the web UI call it with the client of the person that asks, so the API decides on that person's
//! rights. `team::objects` and `drain::plan` are pure: objects in, decisions out; so are [`idle_jobs`], about jobs whose
//! GPUs do nothing, and nearly all of [`cancellation`], which says how jobs are suspended and cancelled.

pub mod cancellation;
pub mod drain;
pub mod idle_jobs;
pub mod team;
