// Package enginetest is an engine's event publisher for tests. It needs cgo.
package enginetest
