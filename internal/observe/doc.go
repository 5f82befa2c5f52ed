// Package observe turns the events that a node commits into log lines and spans; package metrics beneath it counts them.
// Each is made from the event as it was written, never from a second look at what happened.
package observe
