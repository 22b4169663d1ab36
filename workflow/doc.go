// Package workflow makes the workflow with which hosted CI plans, builds, tests and publishes what
// packages.yml says, and does those of its steps that no other command of kiln does: hand a matrix
// to the build jobs, free disk space on a hosted runner, put a CUDA toolkit for Windows together,
// and write the tables of a job's summary.
package workflow
