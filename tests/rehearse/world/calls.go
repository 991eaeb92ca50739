package world

import (
	"encoding/json"
	"os"
	"sync"
)

// Call is one line of the log of calls: a provider's operation or a command.
type Call struct {
	Number int    `json:"number"`
	What   string `json:"what"`          // "create", "docker", ...
	URN    string `json:"urn,omitempty"` // of a provider's operation
	Line   string `json:"line,omitempty"`
	Failed string `json:"failed,omitempty"`
}

// CallLog is every call in order. It holds no property and no standard input,
// so that a secret in it is one that somebody put on a command line.
type CallLog struct {
	mu     sync.Mutex
	file   *os.File
	number int
	calls  []Call
}

// OpenCallLog opens a log and adds to what is in it.
func OpenCallLog(path string) (*CallLog, error) {
	file, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	return &CallLog{file: file}, err
}

// Add writes a call.
func (l *CallLog) Add(call Call) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.number++
	call.Number = l.number
	l.calls = append(l.calls, call)
	text, err := json.Marshal(call)
	if err == nil {
		_, err = l.file.Write(append(text, '\n'))
	}
	if err != nil {
		panic(err)
	}
}

// Since returns the calls after the first count ones, and how many there are.
func (l *CallLog) Since(count int) ([]Call, int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return append([]Call(nil), l.calls[count:]...), len(l.calls)
}

// Close closes the file.
func (l *CallLog) Close() error { return l.file.Close() }
