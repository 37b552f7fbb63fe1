{{/*
Policies select by part-of and component, not by release: job pods belong to no release, and a second release for another run
uses the first one's services.
*/}}

{{/* The podSelector of a list of components. */}}
{{- define "common.pods" -}}
podSelector:
  matchLabels:
    app.kubernetes.io/part-of: rolecast
  matchExpressions:
    - key: app.kubernetes.io/component
      operator: In
      values:
        {{- toYaml . | nindent 8 }}
{{- end }}

{{/* A policy's head. Takes `root`, `name`, `of` (components). */}}
{{- define "common.policy" -}}
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata:
  name: {{ .root.Release.Name }}-{{ .name }}
  labels:
    {{- include "common.labels" .root | nindent 4 }}
spec:
  {{- include "common.pods" .of | nindent 2 }}
{{- end }}

{{- define "common.ports" -}}
ports:
  {{- range . }}
  - port: {{ . }}
    protocol: TCP
  {{- end }}
{{- end }}

{{/* Ingress rules of a service: from `components`, from `more` (peers), from Prometheus. */}}
{{- define "common.serve" -}}
ingress:
  - from:
      - {{ include "common.pods" .components | nindent 8 | trim }}
      {{- with .more }}
      {{- toYaml . | nindent 6 }}
      {{- end }}
    {{- include "common.ports" (list .port) | nindent 4 }}
  {{- with .root.Values.global.networkPolicy.prometheus.from }}
  - from:
      {{- toYaml . | nindent 6 }}
    {{- include "common.ports" (list $.port) | nindent 4 }}
  {{- end }}
{{- end }}

{{/* One egress rule to `to` (peers; none means anywhere) on `ports`. */}}
{{- define "common.egress" -}}
- {{ include "common.ports" .ports | nindent 2 | trim }}
  {{- with .to }}
  to:
    {{- toYaml . | nindent 4 }}
  {{- end }}
{{- end }}
