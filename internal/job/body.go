package job

import "github.com/ojsd/ojsd/internal/payload"

// body reads the requests about jobs.
type body struct{ payload.Body }
