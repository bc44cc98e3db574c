//! A refusal by a ResourceQuota, read back from kube-apiserver's message, in words for users: which quota, the limit,
//! what is used and what was asked for. Works with the messages of both engines
//! (`k8s.io/apiserver/pkg/admission/plugin/resourcequota/controller.go`).

use crate::report::{PlacementReport, WaitReason};

/// The text before the quota's name in the message.
const BEGIN: &str = "exceeded quota: ";
/// The most resources that the sentence names.
const NAMED_MAX: usize = 4;

/// One resource of a refusal, with the amounts as the message writes them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExceededAmount {
    /// The resource as the quota names it: `requests.nvidia.com/gpu`.
    pub resource: String,
    /// The amount that the object asks for.
    pub requested: String,
    /// The amount in use.
    pub used: String,
    /// The limit.
    pub limited: String,
}

/// A refusal by a ResourceQuota.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QuotaRefusal {
    /// The ResourceQuota's name.
    pub quota: String,
    /// The exceeded resources.
    pub amounts: Vec<ExceededAmount>,
}

/// Reads `a=1,b=2`.
fn list(text: &str) -> Vec<(&str, &str)> {
    let pairs = text
        .split(',')
        .filter_map(|pair| pair.trim().split_once('='));
    pairs.collect()
}

impl QuotaRefusal {
    /// Reads a message such as `pods "b" is forbidden: exceeded quota: q, requested: pods=1, used: pods=1, limited:
    /// pods=1`; none if it is no such message.
    pub fn parse(message: &str) -> Option<QuotaRefusal> {
        let (_, rest) = message.split_once(BEGIN)?;
        let (quota, rest) = rest.split_once(", requested: ")?;
        let (requested, rest) = rest.split_once(", used: ")?;
        let (used, limited) = rest.split_once(", limited: ")?;
        let limited = limited.lines().next().unwrap_or_default();
        let (used, limited) = (list(used), list(limited));
        let of = |all: &[(&str, &str)], name: &str| {
            let found = all.iter().find(|(one, _)| *one == name);
            found.map(|(_, amount)| (*amount).to_owned())
        };
        let amount = |(resource, requested): (&str, &str)| {
            Some(ExceededAmount {
                resource: resource.to_owned(),
                requested: requested.to_owned(),
                used: of(&used, resource)?,
                limited: of(&limited, resource)?,
            })
        };
        let amounts: Vec<_> = list(requested).into_iter().filter_map(amount).collect();
        (!amounts.is_empty()).then(|| QuotaRefusal {
            quota: quota.to_owned(),
            amounts,
        })
    }

    /// The refusal in a sentence without its period. `place` is the namespace in words: `namespace team-a`.
    pub fn sentence(&self, place: &str) -> String {
        let one = |amount: &ExceededAmount| {
            let ExceededAmount {
                resource,
                requested,
                used,
                limited,
            } = amount;
            format!(
                "{limited} {resource}, of which {used} are in use, and {requested} more are asked for"
            )
        };
        let named = self.amounts.iter().take(NAMED_MAX).map(one);
        let mut amounts = named.collect::<Vec<_>>().join("; ");
        if self.amounts.len() > NAMED_MAX {
            amounts.push_str(&format!(
                "; and {} more resources",
                self.amounts.len() - NAMED_MAX
            ));
        }
        format!("ResourceQuota {} limits {place} to {amounts}", self.quota)
    }

    /// What to do about it, with the namespace in words.
    pub fn advice(&self, place: &str) -> String {
        format!(
            "ask for less, wait until other work in {place} ends, or have an administrator raise \
             ResourceQuota {}",
            self.quota
        )
    }
}

impl PlacementReport {
    /// Says that members of the gang do not exist because a quota refused their pods. Changes only a report of missing
    /// members. A gang that asks for more than the whole limit is told so: no other work's end can help it.
    ///
    /// Example: a gang of 2 members with 2 GPUs each under a quota of 2: one pod exists, the other is refused. The gang
    /// needs 4 GPUs, and the namespace may never have more than 2.
    pub fn refused_by_quota(&mut self, refusal: &QuotaRefusal) {
        if self.verdict != WaitReason::NotEnoughMembers {
            return;
        }
        self.verdict = WaitReason::QuotaExceeded;
        let place = format!("namespace {}", self.namespace);
        self.binding = refusal.sentence(&place);
        self.would_fit = refusal.advice(&place);
        let beyond = refusal.amounts.iter().find_map(|amount| {
            let limit: i64 = amount.limited.parse().ok()?;
            let plain = amount.resource.strip_prefix("requests.")?;
            let wanted = self.wanted_in_all(plain)?;
            (wanted > limit).then_some((plain, wanted, limit))
        });
        if let Some((resource, wanted, limit)) = beyond {
            self.binding.push_str(&format!(
                "; the gang needs {wanted} {resource} in all, more than the whole limit of {limit}"
            ));
            self.would_fit = format!(
                "ask for at most {limit} {resource} in all, or have an administrator raise ResourceQuota {}",
                refusal.quota
            );
        }
    }

    /// The amount of a counted resource, such as GPUs, that all members need together; none for other resources, whose
    /// amounts have units.
    fn wanted_in_all(&self, resource: &str) -> Option<i64> {
        if !resource.contains('/') {
            return None;
        }
        let of_task = |task: &crate::report::TaskReport| {
            let members = i64::try_from(task.wanted).ok()?;
            task.each.get(resource)?.checked_mul(members)
        };
        let amounts: Vec<i64> = self.tasks.iter().filter_map(of_task).collect();
        (!amounts.is_empty()).then(|| amounts.into_iter().fold(0, i64::saturating_add))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::TaskReport;

    const MESSAGE: &str = "pods \"j-worker-0\" is forbidden: exceeded quota: gpus, requested: \
        requests.nvidia.com/gpu=2, used: requests.nvidia.com/gpu=2, limited: requests.nvidia.com/gpu=2";

    #[test]
    fn a_message_of_kube_apiserver_is_read_and_other_texts_are_not() {
        let refusal = QuotaRefusal::parse(MESSAGE).unwrap();
        assert_eq!(refusal.quota, "gpus");
        assert_eq!(
            refusal.sentence("namespace team-a"),
            "ResourceQuota gpus limits namespace team-a to 2 requests.nvidia.com/gpu, of which 2 are in use, and 2 \
             more are asked for"
        );
        let two = "exceeded quota: q, requested: pods=1,requests.cpu=1, used: pods=2,requests.cpu=3500m, limited: \
                   pods=2,requests.cpu=4";
        let two = QuotaRefusal::parse(two).unwrap();
        assert_eq!(two.amounts.len(), 2);
        assert_eq!(two.amounts[1].used, "3500m");
        for other in [
            "",
            "pods \"b\" is forbidden: no",
            "exceeded quota: ",
            "exceeded quota: q, requested: , used: , limited: ",
            "exceeded quota: q, requested: a=1, used: b=1, limited: a=1",
        ] {
            assert_eq!(QuotaRefusal::parse(other), None, "{other}");
        }
    }

    #[test]
    fn a_sentence_names_a_bounded_number_of_resources() {
        let amounts = |count: usize| {
            let all: Vec<String> = (0..count).map(|n| format!("r{n}=1")).collect();
            all.join(",")
        };
        let with = |count: usize| {
            let text = amounts(count);
            let message =
                format!("exceeded quota: q, requested: {text}, used: {text}, limited: {text}");
            QuotaRefusal::parse(&message).unwrap().sentence("n")
        };
        assert!(!with(NAMED_MAX).contains("more resources"));
        assert!(with(NAMED_MAX + 2).ends_with("and 2 more resources"));
    }

    fn missing(each: i64, wanted: usize) -> PlacementReport {
        PlacementReport {
            namespace: "team-a".into(),
            verdict: WaitReason::NotEnoughMembers,
            binding: "1 of 2 members exist".into(),
            tasks: vec![TaskReport {
                wanted,
                each: [("nvidia.com/gpu".to_owned(), each)].into(),
                ..TaskReport::default()
            }],
            ..PlacementReport::default()
        }
    }

    #[test]
    fn a_gang_beyond_the_whole_limit_is_told_so_and_a_smaller_one_waits_for_others() {
        let refusal = QuotaRefusal::parse(MESSAGE).unwrap();
        let mut beyond = missing(2, 2);
        beyond.refused_by_quota(&refusal);
        assert!(
            beyond.binding.ends_with(
                "the gang needs 4 nvidia.com/gpu in all, more than the whole limit of 2"
            )
        );
        assert!(
            beyond
                .would_fit
                .starts_with("ask for at most 2 nvidia.com/gpu in all")
        );
        assert_eq!(beyond.verdict, WaitReason::QuotaExceeded);
        let mut within = missing(1, 2);
        within.refused_by_quota(&refusal);
        assert!(
            within.binding.ends_with("2 more are asked for"),
            "{}",
            within.binding
        );
        assert!(within.would_fit.contains("wait until other work"));
    }

    #[test]
    fn a_report_of_another_reason_stays() {
        let mut other = missing(2, 2);
        other.verdict = WaitReason::QueueClosed;
        let before = other.clone();
        other.refused_by_quota(&QuotaRefusal::parse(MESSAGE).unwrap());
        assert_eq!(other, before);
    }
}
