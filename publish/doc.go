// Package publish brings finished files to where people get them: a folder, a
// release on GitHub, an S3-compatible bucket or a kiln server, and then into an index.
//
// The way is always the same: what may be published is read from the records of the
// builds ([ReadInventory]), what is there is read from the target ([Target.List]), a pure
// function compares both ([NewPlan]), and [Run] uploads what is missing, reads it back and
// compares it. Running it twice does nothing the second time; killed half-way, the next run
// continues, because the target itself is the state. Published is published: the same name
// with other bytes is refused, unless an overwrite is asked for, which is remembered.
//
// The package also makes the statements that go with a wheel (provenance, bill of
// materials). It does not build, and it does not decide what a wheel is for.
package publish
