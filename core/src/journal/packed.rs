//! Lines of a journal made small: the differences of one tick say the same of each replica, in
//! other numbers, and take a quarter of their length when they are packed.

use std::io::{Read, Write};

use base64::Engine;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use flate2::Compression;
use flate2::read::ZlibDecoder;
use flate2::write::ZlibEncoder;

/// The version of packed lines, which readers refuse that do not know them.
pub(super) const PACKED_VERSION: u64 = 3;

/// Longest line that is unpacked: ten times that of the largest fleet there is.
const LINE_LIMIT_BYTES: u64 = 64 << 20;

/// A line of an [`Encoder`](super::Encoder) as it lies in the queue's memory: zlib (RFC 1950) in
/// base64, in a line of JSON of its own. One that does not get shorter stays as it is.
pub fn pack(line: String) -> String {
    let mut encoder = ZlibEncoder::new(Vec::new(), Compression::default());
    let packed = encoder.write_all(line.as_bytes()).and_then(|()| encoder.finish());
    let Ok(packed) = packed else { return line };
    let packed =
        format!(r#"{{"version":{PACKED_VERSION},"packed":"{}"}}"#, STANDARD_NO_PAD.encode(packed));
    if packed.len() < line.len() { packed } else { line }
}

/// The line that was packed.
///
/// # Errors
/// It was not, or is too long.
pub(super) fn unpack(packed: &str) -> Result<String, String> {
    let packed = STANDARD_NO_PAD.decode(packed).map_err(|error| error.to_string())?;
    let mut line = String::new();
    let mut decoder = ZlibDecoder::new(&*packed).take(LINE_LIMIT_BYTES + 1);
    decoder.read_to_string(&mut line).map_err(|error| error.to_string())?;
    if u64::try_from(line.len()).is_ok_and(|length| length <= LINE_LIMIT_BYTES) {
        return Ok(line);
    }
    Err(format!("it is longer than {LINE_LIMIT_BYTES} bytes when it is unpacked"))
}
