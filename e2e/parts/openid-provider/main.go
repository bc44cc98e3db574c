// Command openid-provider is the identity provider of the tests: the OpenID Provider of zitadel/oidc, which is certified
// by the OpenID Foundation, with users and groups in a file that it reads at each request.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"log"
	"net/http"
	"os"
	"strings"

	"github.com/zitadel/oidc/v3/example/server/exampleop"
	"github.com/zitadel/oidc/v3/example/server/storage"
	"github.com/zitadel/oidc/v3/pkg/oidc"
	"github.com/zitadel/oidc/v3/pkg/op"
)

// account is a user in the file.
type account struct {
	storage.User
	Groups []string
}

// accounts is the file of users, by subject.
type accounts string

func (file accounts) read() map[string]*account {
	text, err := os.ReadFile(string(file))
	if err != nil {
		log.Fatal(err)
	}
	users := map[string]*account{}
	if err := json.Unmarshal(text, &users); err != nil {
		log.Fatal(err)
	}
	for subject, user := range users {
		user.ID = subject
	}
	return users
}

func (file accounts) GetUserByID(subject string) *storage.User {
	if user := file.read()[subject]; user != nil {
		return &user.User
	}
	return nil
}

func (file accounts) GetUserByUsername(name string) *storage.User {
	for _, user := range file.read() {
		if user.Username == name {
			return &user.User
		}
	}
	return nil
}

func (file accounts) ExampleClientID() string { return storage.ServiceUserID }

// store adds the groups to ID tokens.
type store struct {
	*storage.Storage
	accounts accounts
}

func (s *store) SetUserinfoFromRequest(ctx context.Context, info *oidc.UserInfo, token op.IDTokenRequest, scopes []string) error {
	if err := s.Storage.SetUserinfoFromRequest(ctx, info, token, scopes); err != nil {
		return err
	}
	if user := s.accounts.read()[token.GetSubject()]; user != nil && user.Groups != nil {
		info.AppendClaims("groups", user.Groups)
	}
	return nil
}

func (s *store) GetClientByClientID(ctx context.Context, id string) (op.Client, error) {
	found, err := s.Storage.GetClientByClientID(ctx, id)
	if err != nil {
		return nil, err
	}
	return client{found}, nil
}

// client has the user's claims in its ID tokens.
type client struct{ op.Client }

func (client) IDTokenUserinfoClaimsAssertion() bool { return true }

func (client) IsScopeAllowed(scope string) bool { return scope == "groups" }

func main() {
	listen := flag.String("listen", "", "address")
	certificate := flag.String("certificate", "", "certificate in PEM")
	key := flag.String("key", "", "key of the certificate in PEM")
	users := flag.String("users", "", "file of users in JSON, by subject")
	redirects := flag.String("redirects", "", "redirect URIs of the clients muster and other, separated by commas")
	flag.Parse()

	op.DefaultSupportedScopes = append(op.DefaultSupportedScopes, "groups")
	storage.RegisterClients(
		storage.WebClient("muster", "secret-of-muster", strings.Split(*redirects, ",")...),
		storage.WebClient("other", "secret-of-other", strings.Split(*redirects, ",")...),
	)
	all := accounts(*users)
	router := exampleop.SetupServer("https://"+*listen, &store{storage.NewStorage(all), all}, nil, false)
	log.Fatal(http.ListenAndServeTLS(*listen, *certificate, *key, router))
}
