// Package exl2 turns a finished EXL2 quantization into a model folder.
//
// It serves the publisher of a model: the converter of exllamav2 has left a working directory with
// job_new.json and one file for each quantized layer in out_tensor/, and beside it lies the source
// model with everything that stays in half precision. The package assembles the folder that
// exllamav2, TabbyAPI and the text-generation interfaces load. It needs neither Python nor a GPU,
// and its memory does not follow the size of the model.
//
// The job has three steps. [ReadInventory] reads headers and reports everything that is missing or
// wrong, at once. [Inventory.Plan] decides, without reading or writing anything, which tensor goes
// where, down to the offset. [Write] executes the plan and decides nothing: it goes on where an
// interrupted run stopped, and shows the folder under its name only when all of it is on disk.
// [Inspect] says what is in a compiled model, by kiln or by another program; [Verify] checks one
// against its manifest, the rules of the format and the source model.
//
// Two functions take any model in safetensors files, quantized or not: [PlanReshard] plans shards of
// another size, which [Write] writes as it does a compile, and [Diff] says what differs between two.
//
// Two modes decide about the output. [Compat] gives the files of the original step byte for byte,
// with its defects:
//
//   - the shard limit is looked at only after a whole module and extras do not count, so a last
//     shard can be of any size, tensors change their order, and a first tensor above the limit is
//     fatal (here: an error before anything is written);
//   - an extra that two prefixes cover can be in two shards;
//   - the source's index is copied though it names other files, and so are weights in formats such
//     as *.pth.
//
// [Default] packs in order, adds a correct index and a manifest with digests, and leaves stale and
// foreign files behind.
//
// A job without an output folder gets the shards of Compat in its working directory, and nothing
// else.
//
// The package quantizes nothing and does no arithmetic on quantized weights: their bytes are
// copied. Float tensors become half precision the way the original does it, detours through other
// values included (see [Convert]).
package exl2
