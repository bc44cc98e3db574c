#![allow(clippy::unwrap_used)]
use simulator::*;
#[test]
fn stuck() {
    let s = synthetic::generate(&synthetic::parse("jobs=2000,days=30,gpus=256").unwrap()).unwrap();
    let mut lines = Vec::new();
    let o = run(&s, &Options::default(), &mut |d| lines.push(serde_json::to_value(d).unwrap())).unwrap();
    for g in o.gangs.iter().filter(|g| g.ended.is_none()) {
        println!("{g:?}");
        for l in lines.iter().filter(|l| l["group"] == g.name.as_str()) { println!("  {}", l.to_string().chars().take(700).collect::<String>()); }
    }
    for l in lines.iter().filter(|l| l.to_string().contains("job-001660")).take(30) { println!("{}", l.to_string().chars().take(400).collect::<String>()); }
    let w: Vec<String> = lines.iter().filter(|l| l.to_string().contains("default/job-001660")).map(|l| l["group"].as_str().unwrap().to_owned()).collect(); for l in lines.iter().filter(|l| w.iter().any(|n| l["group"] == n.as_str())) { println!("V {}", l.to_string().chars().take(300).collect::<String>()); }
    println!("last {} {}", o.last, lines.len());
}
