//! Owns the layouts in `messages.txt`, read at the first protobuf body. A message's line is its
//! name, each field's line is ` NUMBER NAME TYPE`; before the type, `*` marks a pointer, `[` a
//! list, `{` a map with text keys, `<` a message whose fields JSON inlines into the enclosing
//! message.

use std::collections::HashMap;
use std::sync::LazyLock;

/// The cardinality of a field.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cardinality {
    /// Once; zero means absent.
    Plain,
    /// Once or not at all.
    Pointer,
    /// Any number of times.
    List,
    /// A map with text keys.
    Map,
    /// Inlined into the enclosing message.
    Inline,
}

/// The type of a field.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Type {
    /// Text.
    Text,
    /// Bytes, base64 in JSON.
    Bytes,
    /// Boolean.
    Bool,
    /// A whole number.
    Int,
    /// A floating-point number.
    Double,
    /// A time in whole seconds.
    Time,
    /// A time in microseconds.
    MicroTime,
    /// A resource quantity.
    Quantity,
    /// A number or a text.
    IntOrString,
    /// JSON text.
    Json,
    /// Another message.
    Message(&'static str),
}

/// A field of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MessageField {
    /// Its number on the wire.
    pub number: u64,
    /// Its name in JSON.
    pub name: &'static str,
    /// Its cardinality.
    pub form: Cardinality,
    /// Its type.
    pub of: Type,
}

type Messages = HashMap<&'static str, Vec<MessageField>>;

static MESSAGES: LazyLock<Messages> = LazyLock::new(|| read(include_str!("messages.txt")));

/// The fields of a message.
pub fn find(message: &str) -> Option<&'static [MessageField]> {
    MESSAGES.get(message).map(Vec::as_slice)
}

fn read(text: &'static str) -> Messages {
    let mut messages = Messages::new();
    let mut current = "";
    for line in text.lines() {
        match line.strip_prefix(' ') {
            None => {
                current = line;
                messages.insert(current, Vec::new());
            }
            Some(line) => {
                if let (Some(field), Some(fields)) = (field(line), messages.get_mut(current)) {
                    fields.push(field);
                }
            }
        }
    }
    messages
}

fn field(line: &'static str) -> Option<MessageField> {
    let mut words = line.split(' ');
    let number = words.next()?.parse().ok()?;
    let name = words.next()?;
    let written = words.next()?;
    let forms = [
        ('*', Cardinality::Pointer),
        ('[', Cardinality::List),
        ('{', Cardinality::Map),
        ('<', Cardinality::Inline),
    ];
    let marked = forms
        .iter()
        .find_map(|(mark, form)| Some((*form, written.strip_prefix(*mark)?)));
    let (form, of) = marked.unwrap_or((Cardinality::Plain, written));
    let of = match of {
        "string" => Type::Text,
        "bytes" => Type::Bytes,
        "bool" => Type::Bool,
        "int" => Type::Int,
        "double" => Type::Double,
        "time" => Type::Time,
        "microtime" => Type::MicroTime,
        "quantity" => Type::Quantity,
        "intstr" => Type::IntOrString,
        "json" => Type::Json,
        message => Type::Message(message),
    };
    Some(MessageField {
        number,
        name,
        form,
        of,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_line_is_a_message_or_a_field_and_every_type_is_there() {
        let text = include_str!("messages.txt");
        let lines = text.lines().filter(|line| line.starts_with(' ')).count();
        assert_eq!(MESSAGES.values().map(Vec::len).sum::<usize>(), lines);
        for field in MESSAGES.values().flatten() {
            if let Type::Message(name) = field.of {
                assert!(MESSAGES.contains_key(name), "{name}");
            }
        }
        let pod = find("core.v1.Pod").unwrap();
        assert_eq!(pod[1].name, "spec");
        assert_eq!(pod[1].of, Type::Message("core.v1.PodSpec"));
    }
}
