// Package userguide holds the user's pages of the SDK as tests: their Go lines, which are compiled and run here, and what they promise.
package userguide
