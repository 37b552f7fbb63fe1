{{/* Data of the endpoints ConfigMap. "" is this release's own service or place, "none" leaves a service's key out. */}}
{{- define "common.endpoints" -}}
{{- $domain := printf "%s.svc" .Release.Namespace -}}
{{- $own := dict
  "retriever" (printf "http://%s-retriever.%s:8080" .Release.Name $domain)
  "judge" (printf "http://%s-judge.%s:8080" .Release.Name $domain)
-}}
ROLECAST_STORE: {{ .Values.global.s3.store | quote }}
ROLECAST_S3_ENDPOINT: {{ .Values.global.s3.endpoint | quote }}
ROLECAST_S3_REGION: {{ .Values.global.s3.region | quote }}
ROLECAST_COORDINATORS: {{ .Values.global.endpoints.coordinators | default (printf "%s/coordinators" .Values.global.s3.store) | quote }}
ROLECAST_COORDINATOR_PORT: {{ int .Values.global.endpoints.coordinatorPort | quote }}
{{- with .Values.global.tracing.endpoint }}
ROLECAST_TRACING: otlp
OTEL_EXPORTER_OTLP_ENDPOINT: {{ . | quote }}
{{- end }}
{{- if eq .Values.global.s3.credentials "token" }}
{{- with .Values.global.s3.token }}
# For steps of pipelines, which can mount no token and ask the API server for one.
ROLECAST_S3_AUDIENCE: {{ .audience | quote }}
{{- with .roleArn }}
AWS_ROLE_ARN: {{ . | quote }}
{{- end }}
{{- with .stsEndpoint }}
AWS_ENDPOINT_URL_STS: {{ . | quote }}
{{- end }}
{{- end }}
{{- end }}
{{- range $part := list "retriever" "judge" }}
{{- $url := index $.Values.global.endpoints $part | default (index $own $part) }}
{{- if ne $url "none" }}
ROLECAST_{{ upper $part }}_URL: {{ $url | quote }}
{{- end }}
{{- end }}
{{- end }}

{{/* The port of a URL, as a string. */}}
{{- define "common.urlPort" -}}
{{- $url := urlParse . -}}
{{- regexFind "[0-9]+$" (regexFind ":[0-9]+$" $url.host) | default (ternary "443" "80" (eq $url.scheme "https")) -}}
{{- end }}
