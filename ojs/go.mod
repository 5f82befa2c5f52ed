module github.com/ojsd/ojsd/ojs

go 1.26.0
