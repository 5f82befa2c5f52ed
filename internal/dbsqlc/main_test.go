package dbsqlc_test

import (
	"testing"

	"github.com/ojsd/ojsd/internal/dbtest"
)

func TestMain(m *testing.M) { dbtest.Main(m) }
