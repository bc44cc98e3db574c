//! The openb benchmark: how much of a cluster's GPUs a placement policy can allocate while pods of
//! a production trace arrive one at a time. No pod that fits is refused, and none leaves or moves.
//! The protocol is that of Weng et al., "Beware of Fragmentation" (USENIX ATC 2023). Its policies
//! FGD and BestFit are implemented here as baselines for the production scheduler. Pure: texts come
//! in, tables go out. The caller owns the files and the clock, and the data is not part of this
//! program.

mod baseline;
mod check;
mod data;
mod metrics;
mod play;
mod policy;
mod production;
mod report;

pub use baseline::{BestFit, Fgd};
pub use check::{Compared, PublishedResults, first_difference};
pub use data::{Arrivals, OpenbCluster, OpenbPod, VARIANTS, counts, lists_of, read_pods, typical};
pub use metrics::{ArrivalBins, mean_and_deviation};
pub use play::{Played, play};
pub use policy::{OpenbPlacement, PlacementPolicy, Which};
pub use report::{Report, placements};
