package api

// Records is how many addresses, and keys of addresses, are remembered.
func (k *Keys) Records() (guessing, used int) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return len(k.guesses), len(k.used)
}
