//! Finds the pod of a rank of a training job or LeaderWorkerSet that is gone, by the names of the pods whose logs nodes still
//! keep. The replicas of a type, and the pods of a group, are numbered from 0 without gaps, so that their number is found
//! in as many questions as it has binary digits.

use resources::leader_worker_set;
use resources::numbers::GANG_MEMBERS_MAX;
use resources::training::ReplicaType;

/// The pod of the rank, if `is_kept` says that its log is.
///
/// # Errors
/// Those of `is_kept`.
pub async fn of_rank<E>(
    job: &str,
    rank: u32,
    is_kept: impl AsyncFn(String) -> Result<bool, E>,
) -> Result<Option<String>, E> {
    let mut before = 0;
    for role in ReplicaType::ALL {
        let index = rank - before;
        if index == 0 || !role.is_single() {
            let pod = role.pod_name(job, index);
            if is_kept(pod.clone()).await? {
                return Ok(Some(pod));
            }
        }
        // Without this one there are no later ones either.
        before += if index == 0 {
            0
        } else {
            count(job, role, index, &is_kept).await?
        };
    }
    of_set(job, rank, &is_kept).await
}

/// The pod of the rank of a LeaderWorkerSet: its first group tells how many pods a group has.
async fn of_set<E>(
    set: &str,
    rank: u32,
    is_kept: &impl AsyncFn(String) -> Result<bool, E>,
) -> Result<Option<String>, E> {
    let of_first = |number: u32| leader_worker_set::pod_name(set, 0, number);
    let size = kept_below(rank.saturating_add(1), of_first, is_kept).await?;
    if size == 0 {
        return Ok(None);
    }
    let pod = leader_worker_set::pod_name(set, rank / size, rank % size);
    Ok(is_kept(pod.clone()).await?.then_some(pod))
}

/// How many replicas of a type have logs; the one at `limit` has none.
async fn count<E>(
    job: &str,
    role: ReplicaType,
    limit: u32,
    is_kept: &impl AsyncFn(String) -> Result<bool, E>,
) -> Result<u32, E> {
    if role.is_single() {
        return Ok(u32::from(is_kept(role.pod_name(job, 0)).await?));
    }
    kept_below(limit, |index| role.pod_name(job, index), is_kept).await
}

/// How many pods of these names, numbered from 0 to below `limit`, have logs; at most the members of a gang.
async fn kept_below<E>(
    limit: u32,
    name: impl Fn(u32) -> String,
    is_kept: &impl AsyncFn(String) -> Result<bool, E>,
) -> Result<u32, E> {
    let most = u32::try_from(GANG_MEMBERS_MAX).unwrap_or(u32::MAX);
    let (mut kept, mut gone) = (0, limit.min(most));
    while kept < gone {
        let middle = kept + (gone - kept) / 2;
        if is_kept(name(middle)).await? {
            kept = middle + 1;
        } else {
            gone = middle;
        }
    }
    Ok(kept)
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use super::*;

    #[tokio::test]
    async fn ranks_follow_the_order_of_the_types_that_the_job_had() {
        let find = async |kept: &[&str], rank: u32| {
            let is_kept = async |pod: String| Ok::<_, Infallible>(kept.contains(&pod.as_str()));
            of_rank("j", rank, is_kept).await.unwrap()
        };
        let torch = ["j-master-0", "j-worker-0", "j-worker-1"];
        let mpi = ["j-launcher", "j-worker-0", "j-worker-1"];
        let tf = [
            "j-chief-0",
            "j-worker-0",
            "j-worker-1",
            "j-worker-2",
            "j-ps-0",
            "j-ps-1",
            "j-evaluator-0",
        ];
        let workers = ["j-worker-0", "j-worker-1", "j-worker-2"];
        let servers = ["j-ps-0"];
        let set = ["j-0", "j-0-1", "j-1", "j-1-1"];
        for kept in [&torch[..], &mpi, &tf, &workers, &set] {
            for (rank, pod) in (0..).zip(kept) {
                assert_eq!(find(kept, rank).await.as_deref(), Some(*pod), "{kept:?}");
            }
            let beyond = u32::try_from(kept.len()).unwrap();
            assert_eq!(find(kept, beyond).await, None, "{kept:?}");
        }
        assert_eq!(find(&servers, 0).await.as_deref(), Some("j-ps-0"));
        assert_eq!(find(&[], 5).await, None);
    }
}
