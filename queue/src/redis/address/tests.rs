//! What is read, what is refused with which words, and that nothing shows a password.

use super::*;

fn endpoint(host: &str, port: u16) -> Endpoint {
    Endpoint { host: host.to_owned(), port }
}

#[test]
fn addresses_say_what_they_name() {
    for (url, name) in [
        ("redis://127.0.0.1:7000", "redis 127.0.0.1:7000"),
        ("redis://cache.rl", "redis cache.rl:6379"),
        ("valkey://cache.rl/", "redis cache.rl:6379"),
        ("rediss://user:pw@cache.rl:6380/2", "redis cache.rl:6380"),
        ("redis://[::1]:7000", "redis [::1]:7000"),
        ("redis+sentinel://a,b:7000/main", "redis main of sentinels a:26379,b:7000"),
        ("rediss+sentinel://a/m-1.x_y/3", "redis m-1.x_y of sentinels a:26379"),
        ("redis+cluster://a,b:7000", "redis cluster a:6379,b:7000"),
        ("valkeys+cluster://:p@a/0", "redis cluster a:6379"),
    ] {
        assert_eq!(url.parse::<RedisAddress>().unwrap().to_string(), name, "{url}");
    }
}

#[test]
fn every_part_is_read() {
    let url = "rediss+sentinel://us%40er:p%3Aw%25@a,b:7000/main/3\
               ?ca=/etc/ca%20file.pem&sentinel_user=s&sentinel_password=q%26";
    let address: RedisAddress = url.parse().unwrap();
    assert_eq!(address.nodes, [endpoint("a", 26379), endpoint("b", 7000)]);
    assert_eq!(address.login.user.as_deref(), Some("us@er"));
    assert_eq!(address.login.password.unwrap().reveal(), "p:w%");
    assert_eq!(address.database, 3);
    assert_eq!(address.tls.unwrap().authorities, Some(PathBuf::from("/etc/ca file.pem")));
    let Topology::Sentinel { master, login } = address.topology else { panic!("a sentinel") };
    assert_eq!(master, "main");
    assert_eq!(login.user.as_deref(), Some("s"));
    assert_eq!(login.password.unwrap().reveal(), "q&");
}

#[test]
fn password_alone_and_none_at_all_are_logins() {
    let alone: RedisAddress = "redis://:secret@a".parse().unwrap();
    assert_eq!((alone.login.user, alone.login.password.unwrap().reveal()), (None, "secret"));
    let none: RedisAddress = "redis://a".parse().unwrap();
    assert_eq!(none.login, Login::default());
}

#[test]
fn bad_addresses_are_refused_with_what_to_write() {
    for (url, problem) in [
        ("127.0.0.1:6379", "it has no scheme; write redis://"),
        ("http://a", "the scheme must be redis"),
        ("redis+ring://a", "the scheme must be redis"),
        ("redis+://a", "the scheme must be redis"),
        ("redis://", "host 1 of 1 is empty"),
        ("redis://:6379", "host 1 of 1 is empty"),
        ("redis://a:0", "host 1 of 1 must have a port from 1 to 65535"),
        ("redis://a:", "host 1 of 1 must have a port"),
        ("redis://a:70000", "host 1 of 1 must have a port"),
        ("redis://[::1", "host 1 of 1 has [ without ]"),
        ("redis://[a]:1", "host 1 of 1 has no IPv6 address"),
        ("redis://[::1]1", "host 1 of 1 must have a port"),
        ("redis://a,b", "several hosts"),
        ("redis+cluster://a,,b", "host 2 of 3 is empty; write redis+cluster://"),
        ("redis+cluster://a,b,a", "host 3 of 3 repeats an earlier one"),
        ("redis+cluster://a/1", "a Cluster has database 0 only"),
        ("redis://a/x", "the database after the / must be a number"),
        ("redis://a/-1", "the database after the / must be a number"),
        ("redis+sentinel://a,b", "the name of the master"),
        ("redis+sentinel://a/m m", "the name of the master"),
        ("redis+sentinel://a/m/x", "the database after the / must be a number"),
        ("redis://user@a", "user:password or :password must stand"),
        ("redis://user:@a", "user:password or :password must stand"),
        ("redis://user:50%off@a", "percent-encoded"),
        ("redis://a?timeout=3", "parameter 1 after the ? is not known"),
        ("rediss://a?ca=/x&ca=/y", "parameter 2 after the ? repeats"),
        ("rediss://a?ca=", "parameter 1 after the ? has no readable value"),
        ("redis://a?ca=/x", "ca is for TLS"),
        ("redis://a?sentinel_password=x", "for redis+sentinel:// only"),
        ("redis+sentinel://a/m?sentinel_user=x", "sentinel_user needs sentinel_password"),
    ] {
        let message = url.parse::<RedisAddress>().unwrap_err().to_string();
        assert!(message.contains(problem), "{url}: {message}");
    }
}

#[test]
fn no_message_and_no_debug_output_shows_a_password() {
    for url in [
        "redis://user:hush@a",
        "redis://user:hush@",
        "redis://user:hush%zz@a",
        "redis://:hush",
        "redis://user:hush",
        "redis://us?er:hush@a",
        "redis://u:p/hush@a:x",
        "redis://hush?a",
        "redis+cluster://user:hush@a/7",
        "redis://a?hush=1",
        "redis://a?sentinel_password=hush",
        "redis+sentinel://a/m?sentinel_password=hush",
        "redis+sentinel://hush@a",
        "hush",
    ] {
        let shown = match url.parse::<RedisAddress>() {
            Ok(address) => format!("{address} {address:?}"),
            Err(error) => format!("{error} {error:?}"),
        };
        assert!(!shown.contains("hush"), "{url}: {shown}");
    }
}
