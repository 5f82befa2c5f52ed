// Package observe turns the events that a node commits into log lines and spans; its package metrics counts them. All of
// them are made from the committed event. They must never read the database for more.
package observe
