package cases

import (
	"cmp"
	"context"
	"errors"
	"net"
	"strconv"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	etcd "go.etcd.io/etcd/client/v3"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/gpu-tenants/gpu-tenants/tests/verify/internal/lab"
	"github.com/gpu-tenants/gpu-tenants/tests/verify/internal/report"
)

const (
	skipAlone    = report.Skip("there is no other tenant")
	skipCardless = report.Skip("the tenant has no cards")
)

// isDenied says whether an API server answered, and said no.
func isDenied(err error) bool { return apierrors.IsUnauthorized(err) || apierrors.IsForbidden(err) }

// answer puts "it was allowed" for no error.
func answer(err error) string {
	return cmp.Or(text(err), "they were accepted")
}

// text of an error; "" of none.
func text(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

func isPermissionDenied(err error) bool {
	return errors.Is(rpctypes.Error(err), rpctypes.ErrPermissionDenied)
}

func isUserNotFound(err error) bool {
	return errors.Is(rpctypes.Error(err), rpctypes.ErrUserNotFound)
}

// count is the number of keys below a prefix.
func (r *run) count(ctx context.Context, store *lab.Store, prefix string) (int64, error) {
	limited, cancel := context.WithTimeout(ctx, r.patience)
	defer cancel()
	answer, err := store.Get(limited, prefix, etcd.WithPrefix(), etcd.WithCountOnly())
	if err != nil {
		return 0, err
	}
	return answer.Count, nil
}

func endpoint(text string) (string, int, error) {
	host, port, err := net.SplitHostPort(text)
	if err != nil {
		return "", 0, err
	}
	number, err := strconv.Atoi(port)
	return host, number, err
}
