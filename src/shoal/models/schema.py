"""The tables of the index, documented in docs/registry.md: users query them with `shoal models sql`."""

SCHEMA = 1
"""PRAGMA user_version; a registry with a higher one is refused."""
APPLICATION = 0x53484F4D
"""PRAGMA application_id ("SHOM"): another program's database is refused."""

TABLES = """
create table versions (
    id integer primary key autoincrement,
    name text not null,
    version integer not null,
    digest text not null,
    weights text not null,
    created real not null,
    kind text not null,
    bytes integer not null,
    parameters integer not null,
    run text not null,
    plan text not null,
    plans text not null,
    step integer not null,
    epoch integer not null,
    samples integer not null,
    seed integer not null,
    workers integer not null,
    script text not null,
    code text not null,
    data text not null,
    ledger text not null,
    members text not null,
    parent text not null,
    metrics text not null,
    note text not null,
    unique (name, version),
    unique (name, digest)
);
create index versions_by_run on versions (run);
create index versions_by_digest on versions (digest);
create table names (name text primary key, last integer not null) without rowid;
create table aliases (
    name text not null,
    alias text not null,
    version integer not null,
    changed real not null,
    primary key (name, alias),
    foreign key (name, version) references versions (name, version)
) without rowid;
create table uses (
    version integer not null references versions (id) on delete cascade,
    blob text not null,
    bytes integer not null,
    primary key (version, blob)
) without rowid;
create index uses_by_blob on uses (blob);
create table metric_names (name text primary key) without rowid;
create table changes (
    number integer primary key autoincrement,
    at real not null,
    what text not null,
    name text not null,
    version integer not null,
    alias text not null
);
"""
