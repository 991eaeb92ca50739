package world

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
)

// Journal keeps values on disk, one line for each change, so that a change costs
// one write and what is there survives the end of the process at any point.
type Journal struct {
	file *os.File
}

type journalLine struct {
	Table string          `json:"table"`
	Key   string          `json:"key"`
	Value json.RawMessage `json:"value,omitempty"` // none: removed
}

// OpenJournal opens a journal and hands every value that it holds to replay, the
// older ones first; none stands for a removal.
func OpenJournal(path string, replay func(table, key string, value json.RawMessage) error) (*Journal, error) {
	content, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	whole := bytes.LastIndexByte(content, '\n') + 1 // a line that was cut off never happened
	lines := bufio.NewScanner(bytes.NewReader(content[:whole]))
	lines.Buffer(nil, 64<<20)
	for lines.Scan() {
		var line journalLine
		if err := json.Unmarshal(lines.Bytes(), &line); err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		if err := replay(line.Table, line.Key, line.Value); err != nil {
			return nil, fmt.Errorf("%s: %s %s: %w", path, line.Table, line.Key, err)
		}
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	file, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	if err := file.Truncate(int64(whole)); err != nil {
		return nil, err
	}
	if _, err := file.Seek(int64(whole), 0); err != nil {
		return nil, err
	}
	return &Journal{file: file}, nil
}

// Put records a value.
func (j *Journal) Put(table, key string, value any) {
	raw, err := json.Marshal(value)
	if err == nil {
		err = j.write(journalLine{Table: table, Key: key, Value: raw})
	}
	if err != nil {
		panic(fmt.Errorf("journal: %s %s: %w", table, key, err)) // a world that forgets proves nothing
	}
}

// Remove records that a value is gone.
func (j *Journal) Remove(table, key string) {
	if err := j.write(journalLine{Table: table, Key: key}); err != nil {
		panic(fmt.Errorf("journal: %s %s: %w", table, key, err))
	}
}

func (j *Journal) write(line journalLine) error {
	text, err := json.Marshal(line)
	if err != nil {
		return err
	}
	_, err = j.file.Write(append(text, '\n'))
	return err
}

// Close closes the file.
func (j *Journal) Close() error { return j.file.Close() }
