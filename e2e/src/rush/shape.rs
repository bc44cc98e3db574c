//! The division of pods into gangs, and their names.

use std::fmt;
use std::str::FromStr;

/// A number of gangs of a size: `10x500`; or pods without gangs: `5000`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    gangs: usize,
    size: usize,
    /// Each gang has a PodGroup.
    grouped: bool,
}

impl Shape {
    /// The four shapes in which a number of pods is measured: one gang, gangs of 500 and of 20,
    /// and gangs of one.
    pub fn usual(pods: usize) -> Vec<Shape> {
        let sizes = [pods, 500, 20, 1];
        let fits = sizes.into_iter().filter(|size| *size <= pods && *size > 0);
        fits.map(|size| Shape {
            gangs: pods / size,
            size,
            grouped: true,
        })
        .collect()
    }

    /// The number of pods.
    pub fn pods(self) -> usize {
        self.gangs * self.size
    }

    /// The PodGroups' names and sizes.
    pub(super) fn groups(self) -> impl Iterator<Item = (String, usize)> {
        let gangs = if self.grouped { self.gangs } else { 0 };
        (0..gangs).map(move |gang| (format!("g{gang}"), self.size))
    }

    /// The PodGroup of each pod, if any, and the pod's name.
    pub(super) fn members(self) -> impl Iterator<Item = (Option<String>, String)> {
        (0..self.gangs).flat_map(move |gang| {
            (0..self.size).map(move |member| {
                let group = format!("g{gang}");
                let pod = format!("{group}-{member}");
                (self.grouped.then_some(group), pod)
            })
        })
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.grouped {
            true => write!(f, "{}x{}", self.gangs, self.size),
            false => write!(f, "{}", self.gangs),
        }
    }
}

impl FromStr for Shape {
    type Err = String;

    fn from_str(text: &str) -> Result<Shape, String> {
        let wrong = || {
            format!(
                "`{text}` is no shape: give GANGSxPODS such as 10x500, or a number of pods without gangs"
            )
        };
        let number = |text: &str| text.parse().ok().filter(|number| *number > 0);
        let (gangs, size, grouped) = match text.split_once('x') {
            Some((gangs, size)) => (number(gangs), number(size), true),
            None => (number(text), Some(1), false),
        };
        Ok(Shape {
            gangs: gangs.ok_or_else(wrong)?,
            size: size.ok_or_else(wrong)?,
            grouped,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shape_reads_as_it_is_written_and_a_wrong_one_is_told_of() {
        for text in ["1x5000", "10x500", "5000x1", "5000"] {
            let shape: Shape = text.parse().expect("a shape");
            assert_eq!((shape.to_string().as_str(), shape.pods()), (text, 5000));
            assert_eq!(shape.members().count(), 5000);
        }
        for text in ["", "x5", "0x5", "5x0", "many"] {
            let said = text.parse::<Shape>().expect_err("no shape");
            assert!(said.contains("GANGSxPODS"), "{said}");
        }
    }

    #[test]
    fn the_usual_shapes_have_all_the_pods_that_divide() {
        let usual =
            |pods| -> Vec<String> { Shape::usual(pods).iter().map(Shape::to_string).collect() };
        assert_eq!(usual(5000), ["1x5000", "10x500", "250x20", "5000x1"]);
        assert_eq!(usual(100), ["1x100", "5x20", "100x1"]);
    }
}
