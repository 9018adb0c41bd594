//! Reading request bodies in the protobuf form of the API (`application/vnd.kubernetes.protobuf`), which `kubectl
//! create` and other typed clients send. Answers are always JSON, which those clients accept as well.
//!
//! `wire/schema.txt` lists, one message a line, the fields of the built-in kinds: number, JSON name, type. Types are
//! `s` string, `b` bool, `i` integer, `y` bytes, `d` double, or a message; `*` before it means repeated, `%` a map from
//! strings, `?` that zero differs from unset; the name `^` means that the fields of the message are the parent's own.
//! Source: the field tags of k/k staging/src/k8s.io/{api,apimachinery}.

use std::{collections::BTreeMap, sync::LazyLock};

use base64::{Engine, engine::general_purpose::STANDARD};
use podlab_api::{ApiError, jiff::Timestamp};
use serde_json::{Map, Value};

const MAGIC: &[u8] = b"k8s\0";
/// No message of a built-in kind nests deeper.
const MAX_DEPTH: usize = 40;

struct Field {
    number: u64,
    name: &'static str,
    repeated: bool,
    map: bool,
    pointer: bool,
    kind: &'static str,
}

static SCHEMA: LazyLock<BTreeMap<&'static str, Vec<Field>>> = LazyLock::new(|| {
    let lines = include_str!("wire/schema.txt").lines();
    lines
        .filter_map(|line| {
            line.split_once('|').map(|(name, fields)| (name, fields.split('|').filter_map(field).collect()))
        })
        .collect()
});

fn field(text: &'static str) -> Option<Field> {
    let mut parts = text.split(' ');
    let (number, name, kind) = (parts.next()?.parse().ok()?, parts.next()?, parts.next()?);
    let plain = kind.trim_start_matches(['*', '%', '?']);
    let flags = &kind[..kind.len() - plain.len()];
    let has = |flag: char| flags.contains(flag);
    Some(Field { number, name, repeated: has('*'), map: has('%'), pointer: has('?'), kind: plain })
}

/// Reads a body.
///
/// # Errors
/// 400 for bytes that are no such message and for kinds that are not known.
pub(crate) fn decode(bytes: &[u8]) -> Result<Value, ApiError> {
    let bad = || ApiError::bad_request("the body is not a protobuf message of a known kind");
    let body = bytes.strip_prefix(MAGIC).ok_or_else(bad)?;
    let (mut api_version, mut kind, mut raw) = (String::new(), String::new(), &[][..]);
    for (number, value) in Reader(body).fields().ok_or_else(bad)? {
        match (number, value) {
            (1, Wire::Bytes(meta)) => {
                for (number, value) in Reader(meta).fields().ok_or_else(bad)? {
                    let text = value.text().ok_or_else(bad)?;
                    if number == 1 { api_version = text } else { kind = text }
                }
            }
            (2, Wire::Bytes(inner)) => raw = inner,
            _ => {}
        }
    }
    let group = api_version.split_once('/').map_or("core", |(group, _)| group);
    let package = group.split('.').next().unwrap_or(group);
    let name = if kind == "DeleteOptions" { "meta.DeleteOptions".to_owned() } else { format!("{package}.{kind}") };
    let mut out = Map::new();
    message(&name, raw, 0, &mut out).ok_or_else(bad)?;
    out.insert("apiVersion".into(), api_version.into());
    out.insert("kind".into(), kind.into());
    Ok(Value::Object(out))
}

fn message(name: &str, bytes: &[u8], depth: usize, out: &mut Map<String, Value>) -> Option<()> {
    let fields = SCHEMA.get(name).filter(|_| depth < MAX_DEPTH)?;
    for (number, value) in Reader(bytes).fields()? {
        let Some(field) = fields.iter().find(|f| f.number == number) else { continue };
        if field.name == "^" {
            message(field.kind, value.bytes()?, depth + 1, out)?;
        } else if field.map {
            let (key, inner) = entry(field, value.bytes()?, depth)?;
            if let Some(map) = out.entry(field.name).or_insert_with(|| Value::Object(Map::new())).as_object_mut() {
                map.insert(key, inner);
            }
        } else if field.repeated {
            let inner = single(field.kind, true, &value, depth)?.unwrap_or(Value::Null);
            if let Some(list) = out.entry(field.name).or_insert_with(|| Value::Array(Vec::new())).as_array_mut() {
                list.push(inner);
            }
        } else if let Some(inner) = single(field.kind, field.pointer, &value, depth)? {
            out.insert(field.name.into(), inner);
        }
    }
    Some(())
}

/// One entry of a map.
fn entry(field: &Field, bytes: &[u8], depth: usize) -> Option<(String, Value)> {
    let (mut key, mut inner) = (String::new(), None);
    for (number, value) in Reader(bytes).fields()? {
        match number {
            1 => key = value.text()?,
            _ => inner = single(field.kind, true, &value, depth)?,
        }
    }
    let empty = || if field.kind == "s" || field.kind == "y" { "".into() } else { Value::Object(Map::new()) };
    Some((key, inner.unwrap_or_else(empty)))
}

/// One value; the inner `None` is an unset one. Zero counts as unset unless the field tells them apart.
fn single(kind: &str, keep_zero: bool, value: &Wire<'_>, depth: usize) -> Option<Option<Value>> {
    Some(match kind {
        "s" => {
            let text = value.text()?;
            (keep_zero || !text.is_empty()).then(|| text.into())
        }
        "i" => {
            // Negative numbers are sent as 64-bit two's complement.
            let n = value.number()?.cast_signed();
            (keep_zero || n != 0).then(|| n.into())
        }
        "b" => {
            let yes = value.number()? != 0;
            (keep_zero || yes).then(|| yes.into())
        }
        "d" => Some(f64::from_bits(value.number()?).into()),
        "y" => {
            let bytes = value.bytes()?;
            (keep_zero || !bytes.is_empty()).then(|| STANDARD.encode(bytes).into())
        }
        "meta.Time" | "meta.MicroTime" => time(kind == "meta.MicroTime", value.bytes()?)?,
        "resource.Quantity" => first_text(value.bytes()?)?.map(Value::from).or_else(|| Some("0".into())),
        "intstr.IntOrString" => Some(int_or_string(value.bytes()?)?),
        "runtime.RawExtension" | "meta.FieldsV1" => match first_text(value.bytes()?)? {
            Some(text) => Some(serde_json::from_str(&text).ok()?),
            None => None,
        },
        // A list of strings with a name of its own.
        "authentication.ExtraValue" | "authorization.ExtraValue" => {
            let fields = Reader(value.bytes()?).fields()?;
            Some(fields.iter().map(|(_, v)| v.text().map(Value::from)).collect::<Option<Vec<_>>>()?.into())
        }
        name => {
            let mut inner = Map::new();
            message(name, value.bytes()?, depth + 1, &mut inner)?;
            Some(Value::Object(inner))
        }
    })
}

fn first_text(bytes: &[u8]) -> Option<Option<String>> {
    let fields = Reader(bytes).fields()?;
    Some(match fields.iter().find(|(number, _)| *number == 1) {
        Some((_, value)) => Some(value.text()?),
        None => None,
    })
}

fn time(micro: bool, bytes: &[u8]) -> Option<Option<Value>> {
    let (mut seconds, mut nanos) = (0, 0);
    let fields = Reader(bytes).fields()?;
    for (number, value) in &fields {
        let n = value.number()?.cast_signed();
        if *number == 1 { seconds = n } else { nanos = i32::try_from(n).ok()? }
    }
    // The zero of Go's time is year 1; it and an empty message both mean unset.
    if fields.is_empty() || seconds <= -62_135_596_800 {
        return Some(None);
    }
    let at = Timestamp::new(seconds, if micro { nanos } else { 0 }).ok()?;
    Some(Some(if micro { format!("{at:.6}") } else { at.to_string() }.into()))
}

fn int_or_string(bytes: &[u8]) -> Option<Value> {
    let (mut is_text, mut number, mut string) = (false, 0, String::new());
    for (field, value) in Reader(bytes).fields()? {
        match field {
            1 => is_text = value.number()? == 1,
            2 => number = value.number()?.cast_signed(),
            _ => string = value.text()?,
        }
    }
    Some(if is_text { string.into() } else { number.into() })
}

/// A value as it is on the wire.
enum Wire<'a> {
    Number(u64),
    Bytes(&'a [u8]),
}

impl<'a> Wire<'a> {
    fn number(&self) -> Option<u64> {
        match self {
            Self::Number(n) => Some(*n),
            Self::Bytes(_) => None,
        }
    }

    fn bytes(&self) -> Option<&'a [u8]> {
        match self {
            Self::Bytes(b) => Some(b),
            Self::Number(_) => None,
        }
    }

    fn text(&self) -> Option<String> {
        String::from_utf8(self.bytes()?.to_vec()).ok()
    }
}

struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    /// All fields in order; `None` for bytes that are no message.
    fn fields(mut self) -> Option<Vec<(u64, Wire<'a>)>> {
        let mut out = Vec::new();
        while !self.0.is_empty() {
            let tag = self.varint()?;
            let value = match tag & 7 {
                0 => Wire::Number(self.varint()?),
                1 => Wire::Number(u64::from_le_bytes(self.take(8)?.try_into().ok()?)),
                2 => {
                    let len = usize::try_from(self.varint()?).ok()?;
                    Wire::Bytes(self.take(len)?)
                }
                5 => Wire::Number(u64::from(u32::from_le_bytes(self.take(4)?.try_into().ok()?))),
                _ => return None,
            };
            out.push((tag >> 3, value));
        }
        Some(out)
    }

    fn varint(&mut self) -> Option<u64> {
        let mut out = 0_u64;
        for shift in (0..70).step_by(7) {
            let byte = self.take(1)?[0];
            out |= u64::from(byte & 0x7f).checked_shl(shift)?;
            if byte & 0x80 == 0 {
                return Some(out);
            }
        }
        None
    }

    fn take(&mut self, n: usize) -> Option<&'a [u8]> {
        let (head, rest) = self.0.split_at_checked(n)?;
        self.0 = rest;
        Some(head)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn bytes(field: u8, body: &[u8]) -> Vec<u8> {
        let mut out = vec![field << 3 | 2, u8::try_from(body.len()).unwrap()];
        out.extend_from_slice(body);
        out
    }

    fn envelope(version: &str, kind: &str, raw: &[u8]) -> Vec<u8> {
        let meta = [bytes(1, version.as_bytes()), bytes(2, kind.as_bytes())].concat();
        [MAGIC.to_vec(), bytes(1, &meta), bytes(2, raw)].concat()
    }

    #[test]
    fn a_config_map_is_read_with_its_map_and_without_zeros() {
        let metadata = [bytes(1, b"a"), bytes(2, b""), bytes(8, b"")].concat();
        let entry = [bytes(1, b"k"), bytes(2, b"v")].concat();
        let body = envelope("v1", "ConfigMap", &[bytes(1, &metadata), bytes(2, &entry)].concat());
        let expected = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}, "data": {"k": "v"}});
        assert_eq!(decode(&body).unwrap(), expected);
    }

    #[test]
    fn bytes_that_are_no_message_are_refused() {
        for body in [&b""[..], b"k8s\0\xff", b"{}", b"k8s\0\x12\x7f", &envelope("v1", "Nope", b"")] {
            assert!(decode(body).is_err(), "{body:?}");
        }
    }

    #[test]
    fn every_message_of_the_schema_is_known() {
        let own = [
            "meta.Time",
            "meta.MicroTime",
            "resource.Quantity",
            "intstr.IntOrString",
            "runtime.RawExtension",
            "meta.FieldsV1",
        ];
        for (name, fields) in SCHEMA.iter() {
            for field in fields.iter().filter(|f| f.kind.contains('.')) {
                assert!(own.contains(&field.kind) || SCHEMA.contains_key(field.kind), "{name}.{}", field.name);
            }
        }
    }
}
