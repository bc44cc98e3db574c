//! Cases with one assertion turned round: what a runner that bites must refuse.

use serde_json::{Value, json};

/// Each way to turn one assertion of a case round, with a word on it.
pub fn all(suite: &str, case: &Value) -> Vec<(String, Value)> {
    match suite {
        "kai" => kai(case),
        "kueue-tas" => tas(case),
        "kueue-preemption" => preemption(case),
        _ => volcano(case),
    }
}

fn turned(case: &Value, what: &str, change: impl FnOnce(&mut Value)) -> (String, Value) {
    let mut turned = case.clone();
    change(&mut turned["expect"]);
    (what.to_owned(), turned)
}

/// A workload that runs should wait, one that waits should run.
fn kai(case: &Value) -> Vec<(String, Value)> {
    let workloads = case["expect"]["workloads"].as_object();
    let counted = workloads
        .into_iter()
        .flatten()
        .filter(|(_, want)| want["running_pods"].is_u64());
    let turn = |(name, want): (&String, &Value)| {
        let runs = want["running_pods"].as_u64().unwrap_or(0);
        turned(case, name, |expect| {
            let want = &mut expect["workloads"][name];
            want["running_pods"] = json!(if runs > 0 { runs - 1 } else { 1 });
        })
    };
    counted.map(turn).collect()
}

/// What fits should not, what does not should; and one pod should be elsewhere.
fn tas(case: &Value) -> Vec<(String, Value)> {
    let fits = case["expect"]["fits"] == true;
    let mut all = vec![turned(case, "fits", |expect| expect["fits"] = json!(!fits))];
    for set in case["expect"]["assignments"]
        .as_object()
        .into_iter()
        .flatten()
    {
        all.push(turned(case, set.0, |expect| {
            let count = set.1[0]["count"].as_u64().unwrap_or(0);
            expect["assignments"][set.0][0]["count"] = json!(count + 1);
            expect["alternatives"] = json!([]);
        }));
    }
    // A replacement that is left as it is places nobody, whether it fits or not.
    if case["workload"]["relocatable"] == false || case["kind"] == "elastic" {
        all.remove(0);
    }
    all
}

/// One victim more, or nobody where there were some.
fn preemption(case: &Value) -> Vec<(String, Value)> {
    let count = case["expect"]["count"].as_u64().unwrap_or(0);
    let leaving = |name: &String| {
        let admitted = case["admitted"].as_array().into_iter().flatten();
        let mut mine = admitted.filter(|workload| workload["name"] == **name);
        mine.any(|workload| workload["already_evicted"] == true)
    };
    let mut all = vec![turned(case, "one more", |expect| {
        expect["count"] = json!(count + 1);
        expect["preempted"]["nobody-of-this-name"] = json!("InClusterQueue");
        expect["alternatives"] = json!([]);
    })];
    let real = case["expect"]["preempted"]
        .as_object()
        .into_iter()
        .flatten();
    if real.into_iter().any(|(name, _)| !leaving(name)) {
        all.push(turned(case, "nobody", |expect| {
            expect["count"] = json!(0);
            expect["preempted"] = json!({});
            expect["alternatives"] = json!([]);
        }));
    }
    all
}

/// One binding more, and one less.
fn volcano(case: &Value) -> Vec<(String, Value)> {
    let count = case["expect"]["bind_count"].as_u64().unwrap_or(0);
    let pods = case["pods"].as_array().into_iter().flatten();
    let pending = pods.filter(|pod| pod["state"] == "pending").count() as u64;
    let mut all = Vec::new();
    if case["expect"]["bindings"].is_object() {
        all.push(turned(case, "another node", |expect| {
            expect["bindings"]["nobody-of-this-name"] = json!("nowhere");
        }));
    } else {
        all.push(turned(case, "one more", |expect| {
            expect["bind_count"] = json!(count + 1);
        }));
        if count == pending && count == 1 {
            all.push(turned(case, "none", |expect| {
                expect["bind_count"] = json!(0)
            }));
        }
    }
    all
}
