use schema::{Schemas, apply::{self, Manager, Operation}};
use serde_json::{Value, json};
use std::io::Write;
#[test]
fn zz() {
    let Ok(path) = std::env::var("DIFF_IN") else { return };
    let crd: Value = serde_json::from_str(&std::fs::read_to_string("/tmp/smd/crd.json").unwrap()).unwrap();
    let schemas = Schemas::load(&[crd]).unwrap();
    let mut out = std::fs::File::create("/tmp/smd/rust.out").unwrap();
    for line in std::fs::read_to_string(path).unwrap().lines() {
        let s: Value = serde_json::from_str(line).unwrap();
        if s["kind"] == "strategic" {
            match schema::strategic::apply(&schemas, "io.k8s.api.core.v1.Pod", &s["original"], &s["patch"]) {
                Ok(v) => writeln!(out, "{v}").unwrap(),
                Err(e) => writeln!(out, "error: {}", e.to_string().replace('\n', "\\n")).unwrap(),
            }
            continue;
        }
        let kind = s["kind"].as_str().unwrap();
        let (def, gv) = match kind { "Widget" => ("dev.example.v1.Widget", "example.dev/v1"), "Job" => ("io.k8s.api.batch.v1.Job", "batch/v1"),
            "Pod" => ("io.k8s.api.core.v1.Pod", "v1"), "Service" => ("io.k8s.api.core.v1.Service", "v1"), "Event" => ("io.k8s.api.core.v1.Event", "v1"), _ => ("io.k8s.api.core.v1.ConfigMap", "v1") };
        let mut live: Option<Value> = None;
        let mut outs = vec![];
        for st in s["steps"].as_array().unwrap() {
            let m = Manager { name: st["manager"].as_str().unwrap().into(), operation: Operation::Apply, api_version: gv.into(), subresource: None };
            let mut o = st["object"].clone();
            o["apiVersion"] = json!(gv); o["kind"] = json!(kind);
            let r = if st["op"] == "apply" { apply::apply(&schemas, def, live.as_ref(), &o, &m, st["force"] == true, "2025-01-01T00:00:00Z") }
                else { apply::track_update(&schemas, def, live.as_ref(), &mut o, &m, "2025-01-01T00:00:00Z"); Ok(o) };
            match r { Ok(mut v) => { v["metadata"]["uid"] = json!("u"); live = Some(v.clone());
                if let Some(a) = v["metadata"]["managedFields"].as_array_mut() { for e in a { e.as_object_mut().unwrap().remove("time"); } }
                outs.push(json!({"object": v})) }
                Err(e) => outs.push(json!({"error": e.to_string()})) }
        }
        writeln!(out, "{}", Value::Array(outs)).unwrap();
    }
}
